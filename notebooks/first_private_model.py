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
# # First private model on your table
#
# A table has one row for each person. We train a classifier with differential privacy for each of them, and look at
# what privacy costs. The people are made up; put your own DataFrame or CSV file in their place.

# %%
import tempfile

import matplotlib.pyplot as plt
import numpy as np

import dordis

rng = np.random.default_rng(1)


def draw_people(count):
    """Make up people: age, income, and whether they left."""
    age, income = rng.uniform(18, 90, count), rng.uniform(10, 120, count)
    score = 0.04 * (age - 50) - 0.03 * (income - 60)
    return {"age": age, "income": income, "left": np.where(score + rng.normal(0, 0.6, count) > 0, "yes", "no")}


people, public = draw_people(400), draw_people(300)

# %% [markdown]
# ## Describe the table
#
# Ranges and categories are public knowledge. They are never read from the rows: the largest income in the table is the
# income of one person.

# %%
table = dordis.Table(
    label="left",
    ranges={"age": (18, 100), "income": (0, 150)},
    categories={"left": ("no", "yes")},
)

# %% [markdown]
# ## Train
#
# Every person is one client. `epsilon` is the budget of each person over all rounds. `fidelity="ideal"` computes the
# result of the protocol, with noise of the same law, without its messages.

# %%
output = tempfile.mkdtemp()
results = {
    epsilon: dordis.train(
        "softmax", people, table=table, test=public, epsilon=epsilon, rounds=8, fidelity="ideal", output=output
    )
    for epsilon in (0.5, 2.0, None)
}
for epsilon, result in results.items():
    print(f"epsilon {epsilon}: accuracy {result.metrics['accuracy']:.3f}")

# %%
figure, axes = plt.subplots(figsize=(6, 3))
for epsilon, result in results.items():
    rounds = [line["round"] for line in result.history]
    label = "no noise, no privacy" if epsilon is None else f"epsilon {epsilon}"
    axes.plot(rounds, [line["accuracy"] for line in result.history], marker="o", label=label)
axes.set_xlabel("round")
axes.set_ylabel("accuracy")
axes.legend()
plt.show()

# %% [markdown]
# ## Use the model
#
# Raw rows go in, class names come out. The report states in plain words what was proved, against whom, and
# what was not.

# %%
private = results[2.0]
print(private.predict({"age": [25, 80], "income": [110, 15]}))
print(private.verdict)
assert private.epsilon <= 2.0
assert private.report().is_file()
