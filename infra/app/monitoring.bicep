// Where the log lines go: Application Insights on a Log Analytics workspace.

@description('Name of the Log Analytics workspace.')
param workspaceName string

@description('Name of the Application Insights component.')
param applicationInsightsName string

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

@description('Days log lines are kept; the first 31 cost nothing. Decisions are kept apart, in the table ScalingLog.')
@minValue(30)
@maxValue(730)
param retentionInDays int = 30

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' = {
  name: workspaceName
  location: location
  tags: tags
  properties: {
    sku: {
      name: 'PerGB2018'
    }
    retentionInDays: retentionInDays
  }
}

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' = {
  name: applicationInsightsName
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: workspace.id
    // Telemetry only by identity: the connection string alone lets nobody write.
    DisableLocalAuth: true
  }
}

@description('Name of the Application Insights component.')
output applicationInsightsName string = applicationInsights.name

@description('Name of the Log Analytics workspace.')
output workspaceName string = workspace.name
