# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     name: python3
#     display_name: Python 3
#     language: python
# ---

# %% [markdown]
# # XNoise against dropout
#
# Clients add the noise of differential privacy together. A client that drops out takes its share with it. We measure
# what that does to epsilon, with even shares of noise (`orig`) and with XNoise, at several rates of dropout.

# %%
import tempfile

import matplotlib.pyplot as plt

import dordis

RATES = (0.0, 0.2, 0.4)
STRATEGIES = ("xnoise", "orig")
output = tempfile.mkdtemp()


def run(strategy, rate):
    """Train on the digits that come with dordis, with a strategy and a rate of dropout."""
    settings = {
        "name": f"{strategy}-{rate}",
        "output": output,
        "federation": {"rounds": 10},
        "privacy": {"epsilon": 6.0, "noise": {"kind": strategy}},
        "simulation": {"fidelity": "ideal", "dropout": {"kind": "rate", "rate": rate}},
    }
    return dordis.run(settings)


results = {(strategy, rate): run(strategy, rate) for strategy in STRATEGIES for rate in RATES}

# %% [markdown]
# ## Epsilon
#
# The budget is 6. With XNoise epsilon stays at the budget, whoever drops out. With even shares it rises with the rate.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
for strategy in STRATEGIES:
    left.plot(RATES, [results[strategy, rate].spent for rate in RATES], marker="o", label=strategy)
    right.plot(RATES, [results[strategy, rate].metrics["accuracy"] for rate in RATES], marker="o", label=strategy)
left.axhline(6.0, linestyle="--", color="grey", label="budget")
left.set_ylabel("epsilon spent")
right.set_ylabel("accuracy")
for axes in (left, right):
    axes.set_xlabel("rate of dropout")
    axes.legend()
figure.tight_layout()
plt.show()

# %%
for (strategy, rate), result in results.items():
    print(f"{strategy:7} dropout {rate:.0%}: epsilon {result.spent:.3f}, accuracy {result.metrics['accuracy']:.3f}")
assert all(results["xnoise", rate].spent <= 6.0 for rate in RATES)
assert results["orig", 0.4].spent > 6.0

# %% [markdown]
# ## Why
#
# With XNoise every client adds enough noise for the worst dropout that is tolerated. When it is known who dropped out,
# the excess is removed from seeds that clients shared before. The noise that remains is the target, whoever drops out.
# The tutorial *Simulate a fleet with dropout* compares more strategies.
