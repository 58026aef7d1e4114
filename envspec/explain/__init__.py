"""Why a lock is as it is: everything told here, the lock holds; nothing is resolved or fetched."""
