"""What every service process needs: options, server life cycle, channels, telemetry, supervision."""
