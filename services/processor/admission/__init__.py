"""Admission: the stages that a request passes before it reaches an engine, in this order.

admission               all limits together: what a request takes of each, and gives back
backlog, rate_limiter   the admission limit, and tenants' limits (tenant_policy); throughput: work done per second
tenant_window           how many requests of a tenant may be tokenized and queued at engines
picture_stage           before that, requests with pictures: these are prepared (media/)
tokenization_queue      worker threads, fair between tenants (deficit_round_robin, over bytes)
tokenization_job        one request's turn: its model, its work in a thread, and the hand-over to in_flight
validation              in a thread: checks of the request's values
request_resolution      in a thread: every default, and the messages to engine, detokenizer and client, with
                        prompt_resolution (its ids), tool_resolution (tools, and which must be called),
                        parse_resolution (typed parts) and constraint_resolution (the grammar of the answer)
pooling_job, pooling_resolution, pooling_validation, pooling_inputs
                        the same for requests whose inputs are pooled, some inputs at each turn
"""
