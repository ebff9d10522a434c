"""The command line: parse, run one operation, print one envelope. Only faces read the environment or print."""
