"""The processor service: the front door.

main        the process: start-up, life, end
service     the RPCs
validation  what a request may ask for
admission   a request → prompt ids and everything resolved
vocabulary  the tokenizer and model, as fetched from an engine
ring        live requests: submits, frames, terminals
engines     links to engines
detokenizers  subscriptions at detokenizers
    client      one client's stream: its requests, and what it is owed
responses   ring data → the client's protobuf
"""
