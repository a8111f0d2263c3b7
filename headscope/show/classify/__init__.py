"""How ``classify`` looks: tables, sentences, figures."""
