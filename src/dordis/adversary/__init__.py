"""What an adversary may try: each attack is a row of a table that runs real machines and says what it gained.

`attack` says what a row is, `suite` has all of them.  The tables, one a theme, are `invitations`, `views`, `survivors`,
`order`, `replays`, `keys`, `sharing`, `blame`, `noise`, `delivery`, `rules`, `projection`, `owners`, `selection`,
`encoding`.  Rows are made of the steps of a round (`session`) between `participants`, of deviations that many attacks
share (`forms`), and of what the adversary computes in the end (`reconstruct`); `names` lists what stands in its way.
"""
