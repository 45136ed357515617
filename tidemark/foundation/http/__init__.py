"""HTTP without a framework: who calls, and what is answered."""
