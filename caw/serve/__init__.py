"""`caw serve`: an OpenAI-compatible server that watermarks every response.

contracts    interfaces of the key registry and the receipt log
app          the paths; guard: checks before each request
running      sockets and signals; connections: timeouts and the connection limit
requests     OpenAI's requests; tools: functions to call; prompts: their ids
marking      whether and how a request's texts are marked
service      from a request to an order: texts whose receipts have begun
orders       texts in progress, and the pieces for the client; unfolding: text from tokens
answering    delivery of an order to its client; shapes: OpenAI's JSON
engine       the thread that owns the model; inbox: its queue; planning: its plan
detecting    detection for tenants and for the public; rates: the public's rate limit
single       one tenant without a registry; receipt_files: receipts without one
"""
