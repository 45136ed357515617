"""AMQP 1.0 for local servers: codec, framing, and the listener's side of connections, sessions and links.

    values.py        the types of the wire that Python lacks
    encoder.py       values to bytes
    decoder.py       bytes to values
    performatives.py open, begin, attach, ... with their full field count
    frames.py        bytes <-> frames
    messages.py      sections of a message
    connection.py    one connection: SASL, open, heartbeats, sessions
    session.py       one session: windows, transfers, dispositions
    links.py         the two kinds of link and what a service must offer them
    requests.py      request and response over a pair of links; put-token on $cbs

Only the listener's side exists: peers connect, begin and attach; we answer.
"""
