"""AMQP 1.0 for local servers: codec, framing, and the listener's side of connections, sessions and links.

    wire/            bytes <-> values, performatives, frames, messages
    ports.py         what connection, session, link and service ask of one another
    links.py         the two kinds of link
    session.py       one session: windows, transfers, dispositions
    connection.py    one connection: SASL, open, heartbeats, sessions
    requests.py      request and response over a pair of links; put-token on $cbs
    misbehaviour.py  the faults that both namespaces commit in the same way
    timers.py        what is to be done later
    listener.py      one port for several protocols
    server.py        what every namespace has: port, certificate, connections, start and end

Only the listener's side exists: peers connect, begin and attach; we answer.
"""
