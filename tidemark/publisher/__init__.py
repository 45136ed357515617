"""Publishing: idempotent to Event Hubs, and in big batches to Service Bus."""
