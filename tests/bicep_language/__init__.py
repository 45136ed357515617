"""An interpreter for the templates in infra/: see README.md."""

from tests.bicep_language.deployment import Deployment, Placed, Skipped, expand
from tests.bicep_language.nodes import Template
from tests.bicep_language.parser import BicepSyntaxError, read

__all__ = ["BicepSyntaxError", "Deployment", "Placed", "Skipped", "Template", "expand", "read"]
