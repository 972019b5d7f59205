"""Handwritten digits, learnt privately with Flower and dordis."""
