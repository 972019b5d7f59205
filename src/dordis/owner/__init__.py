"""The owner, who consents for a client: policy, participation count, journal, receipts, and checks of manifests."""
