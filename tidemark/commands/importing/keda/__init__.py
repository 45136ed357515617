"""ScaledObjects of KEDA: triggers, and the behavior of the HPA. Pure."""
