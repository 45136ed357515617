"""Service Bus queues and subscriptions: counts from the administration API, ages and sessions from the data plane."""
