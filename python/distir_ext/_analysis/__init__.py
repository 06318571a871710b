"""Behind ``distir_ext.analysis``: the planned program, its steps and layers."""
