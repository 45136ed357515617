"""Sets a whole number in any resource of Resource Manager: replicas, virtual machines, units of a namespace."""
