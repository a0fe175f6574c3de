"""The protocol's state machines, pure: no gRPC, no asyncio, no clock of their own.

positions    does a delta fit behind what is already there?
identity     peers, ring ids, epochs
events       what travels: deltas, ends, prompt progress
ledger       what the engine remembers of each request until its submitter says Done
ledgers      all of them: by request and by submission, their memory, and those whose submitter is gone
cursor       an outbound link of the engine: where it is in each ledger entry, and the next frame
submission   a Submit, as far as the ring looks into it
quota        what requests hold together, within a size
retry        when those who are refused should come again
switchboard  the engine's door: attached peers, ledger, links; what each command does
outbox       coalesced text towards a reader that may be slow
request      the processor's view of one request: epoch, positions, ends, usage
routes       which (engine, detokenizer) pairs may carry a request
route_index  who is on a route, by either of its ends
due          what waits for its time
outage       how long has a request been without a route?
liveness     is a peer alive, and does it move?
"""
