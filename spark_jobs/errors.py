"""What stops a job, by who must act: the errors of the commands without Spark. Pure."""

from tidemark.analysis.errors import GATE_CLOSED, GateClosedError, InputError, JobError, job_errors

__all__ = ["GATE_CLOSED", "GateClosedError", "InputError", "JobError", "job_errors"]
