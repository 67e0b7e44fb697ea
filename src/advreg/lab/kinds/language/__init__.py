"""Fine-tuning a causal language model on text, on prompts with answers, or on chats."""
