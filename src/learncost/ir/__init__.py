"""The intermediate representation: tables of lines, terms and named axes, their parser, polynomials and errors."""
