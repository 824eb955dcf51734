"""Prediction of a strategy's cost: models of its speed, measurements of the link, and observation of the layers."""
