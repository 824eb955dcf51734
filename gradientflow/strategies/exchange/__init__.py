"""What methods are built on: pools, residuals, selected entries, servers, periodic exchanges, copies to the host."""
