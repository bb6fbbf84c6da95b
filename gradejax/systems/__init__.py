"""Each paper's system is an assembly of the parts below; SYSTEMS names them.

A system is a folder with the same files: `config`, `network`, `policy`, `objective`, `learner`
(the pure step), `infer`, `fit` and `system` (the library object).
"""

SYSTEMS = {"grade": "gradejax.systems.grade"}
