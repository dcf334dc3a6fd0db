"""`model.generate(custom_generate=FOLDER, trust_remote_code=True, watermark=...)`: what transformers looks for here."""

from caw.integrations.transformers import generate as generate
