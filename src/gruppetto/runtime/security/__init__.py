"""Who may do what at a syncer: certificates and tokens of its own authority, and how strangers are kept at bay."""
