"""`caw serve`: an OpenAI-compatible endpoint that marks what it says.

contracts    what it asks of a registry of keys and of a log of receipts
app          what each path does; guard: what stands before it
running      sockets and signals; connections: slow clients and too many
requests     what clients send; tools: functions to call; prompts: their ids
marking      whether and how their texts are marked
service      from a request to an order: texts whose receipts have begun
orders       texts under way, and the pieces that go to the client; unfolding: text from tokens
answering    how an order reaches its client; shapes: OpenAI's JSON
engine       the thread that owns the model; inbox: how texts get there; planning: its plan
detecting    whether a text is marked, for tenants and for the public; rates: how often the public may ask
single       one tenant without a registry; receipt_files: receipts without one
"""
