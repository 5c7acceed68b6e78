"""What people see: figures and pages. No arithmetic of privacy here."""
