"""What all benches have in common: cases, checks, timing, sessions, tables, pictures and result files."""
