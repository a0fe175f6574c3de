"""Endpoints of models that make vectors, scores and labels, in the forms of OpenAI, vLLM, Jina, Cohere, TEI, llama.cpp.

endpoint   the path of all of them: parse, ask a processor, write the answer in pieces
fields     fields that they share, and the ring's requests made of bodies
floats     vectors as JSON and base64
embeddings, rerank, scores, labels, results, tei, cohere, llama_cpp   the endpoints by API
"""
