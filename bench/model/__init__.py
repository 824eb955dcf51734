"""The error of the model: predictions for hosts that are then emulated and measured."""
