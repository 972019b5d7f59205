"""What an adversary may try, as programs: each attack runs real machines and says what it gained or who refused it."""
