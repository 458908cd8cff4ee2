"""Material and scoring that the benchmarks of transcripts share."""
