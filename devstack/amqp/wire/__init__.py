"""AMQP 1.0 as bytes: types, performatives, frames and messages."""
