"""What a person learns from recorded load and from bills, on one machine: advice, backtests, costs, seasons. Knows no Spark."""
