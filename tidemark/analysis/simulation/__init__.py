"""What autoscalers would have made of a recorded load: a model of the queue, peers as documented, and our own decisions. Pure."""
