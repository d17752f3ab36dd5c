"""Work that nobody waits for: OpenAI's files and batches, and Workers AI's queued requests, kept by JetStream."""
