"""Rounds of a real server and real clients behind throttled links, measured (paper, sections 6.1 and 6.4)."""
