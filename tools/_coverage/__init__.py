"""What ./tools/op_coverage measures and how: cases.py (the databases), judge.py (one case), worker.py and pool.py (processes), table.py."""
