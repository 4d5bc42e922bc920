"""Operations: one module per op or family, imported when an op is first looked up."""
