"""MMLU by subject: 57 subjects (Hendrycks et al. 2020, arXiv 2009.03300)."""

from gradejax.tasks.benchmarks.spec import BenchmarkSpec, Place, column, letter_of, texts

# subject: (validation, test) items; every subject has five more in "dev", for worked examples
SUBJECTS = {
    "abstract_algebra": (11, 100), "anatomy": (14, 135), "astronomy": (16, 152),
    "business_ethics": (11, 100), "clinical_knowledge": (29, 265), "college_biology": (16, 144),
    "college_chemistry": (8, 100), "college_computer_science": (11, 100),
    "college_mathematics": (11, 100), "college_medicine": (22, 173), "college_physics": (11, 102),
    "computer_security": (11, 100), "conceptual_physics": (26, 235), "econometrics": (12, 114),
    "electrical_engineering": (16, 145), "elementary_mathematics": (41, 378),
    "formal_logic": (14, 126), "global_facts": (10, 100), "high_school_biology": (32, 310),
    "high_school_chemistry": (22, 203), "high_school_computer_science": (9, 100),
    "high_school_european_history": (18, 165), "high_school_geography": (22, 198),
    "high_school_government_and_politics": (21, 193), "high_school_macroeconomics": (43, 390),
    "high_school_mathematics": (29, 270), "high_school_microeconomics": (26, 238),
    "high_school_physics": (17, 151), "high_school_psychology": (60, 545),
    "high_school_statistics": (23, 216), "high_school_us_history": (22, 204),
    "high_school_world_history": (26, 237), "human_aging": (23, 223), "human_sexuality": (12, 131),
    "international_law": (13, 121), "jurisprudence": (11, 108), "logical_fallacies": (18, 163),
    "machine_learning": (11, 112), "management": (11, 103), "marketing": (25, 234),
    "medical_genetics": (11, 100), "miscellaneous": (86, 783), "moral_disputes": (38, 346),
    "moral_scenarios": (100, 895), "nutrition": (33, 306), "philosophy": (34, 311),
    "prehistory": (35, 324), "professional_accounting": (31, 282), "professional_law": (170, 1534),
    "professional_medicine": (31, 272), "professional_psychology": (69, 612),
    "public_relations": (12, 110), "security_studies": (27, 245), "sociology": (22, 201),
    "us_foreign_policy": (11, 100), "virology": (18, 166), "world_religions": (19, 171),
}  # fmt: skip
DEV_ITEMS = 5


def from_hub(row, place: Place) -> dict:
    """`answer` is a 0-based index."""
    options = texts(row, "choices")
    return {
        "id": f"mmlu-{place.subset}-{place.split}-{place.index}",
        "question": column(row, "question"),
        "choices": options,
        "answer": letter_of(column(row, "answer", int), options),
        "subject": row.get("subject") or place.subset,
    }


MMLU = BenchmarkSpec(
    name="mmlu",
    hub_id="cais/mmlu",
    revision="c30699e8356da336a370243923dbaf21066bb9fe",
    kind="choice",
    slot="choice",
    subsets=("all", *SUBJECTS),
    splits={"dev": "dev", "validation": "validation", "test": "test"},
    counts={
        (subject, split): n
        for subject, (validation, test) in SUBJECTS.items()
        for split, n in (("dev", DEV_ITEMS), ("validation", validation), ("test", test))
    },
    from_hub=from_hub,
    exemplars="dev",
    exemplar_key="subject",
)
