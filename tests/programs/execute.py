"""Become another program: ``execute.py PROGRAM ARGUMENTS``. So a compiled program is started like every other one."""

import os
import sys

os.execv(sys.argv[1], sys.argv[1:])
