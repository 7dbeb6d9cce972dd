"""Messages to ids and ids to replies, without torch or transformers."""
