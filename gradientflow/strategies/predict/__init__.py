"""What a strategy will cost: models of its speed, measurements of the link, and observation of the layers."""
