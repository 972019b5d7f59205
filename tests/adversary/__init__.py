"""Attacks on dordis: each is a row of a table, which runs real clients and servers and says what it gained.

`attack` defines a row, `suite` lists the themes, one module each, and `page` writes their tables into
docs/attacks.md.  Attacks are made of the steps of a round (`session`) between `participants`, of deviations that
several attacks share (`forms`) and of the adversary's computations (`reconstruct`); `names` lists the checks.
"""
