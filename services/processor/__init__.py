"""The processor service: the front door.

main           the process: start-up, life, end
service        the RPCs
intake         where clients' requests begin, are refused and end
validation     what a request may ask for
admission      a request → prompt ids and everything resolved
lookups        what is answered from the vocabulary alone
desk           what waits to be tokenized, off the event loop
window         how far a tenant's requests go before engines need them
turns          the order in which they are: tenants in turns
tenants        whose a call is, as its metadata says
callers        who asks, and whether it was proved
authentication   by bearer token, known by its hash
json_web_tokens  or signed by an issuer
tenant_policy  what each tenant may do
meter          how much of it each does
speed          how fast things that wait get done
backlog        requests that no engine has begun: how many may wait, and for how long
vocabulary     the model and tokenizer, as fetched from an engine
client         one client's stream: its requests, and what it is owed
ring           requests on the ring: submits, frames, moves, ends
commands       a request on the ring as what engines are told of it
placement      where each request is computed, and when it moves
records        what is told of requests: their times, and one log line each
traces         this process's spans of requests that are traced
peers          links to engines and detokenizers, and which pairs are joined
chronicle      what became of peers lately
views          a peer as people are shown it
overview       the ring at this moment and over the last minutes, for the live page
page           the live page itself (page.html)
detokenizers   subscriptions
text_frames    a detokenizer's frame → ring data
responses      ring data → the client's protobuf
"""
