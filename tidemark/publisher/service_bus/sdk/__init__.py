"""The Service Bus SDK as the sender uses it: links, sizes, and by which names."""
