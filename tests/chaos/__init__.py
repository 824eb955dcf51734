"""Jobs whose ranks are killed, cut off or started again, and checks of what is left.

See README.md in this folder.
"""
