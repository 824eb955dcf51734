"""Parts that all benches share: cases, checks, timing, sessions, tables, pictures and result files."""
