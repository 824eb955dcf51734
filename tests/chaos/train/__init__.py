"""A training while ranks are killed and come back, beside an undisturbed one."""
